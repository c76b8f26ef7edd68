"""What the processes of a job say of themselves: asked, recorded, read again, exported."""
