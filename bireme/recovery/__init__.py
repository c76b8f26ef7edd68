"""How processes of a job begin again after one of them is lost."""
