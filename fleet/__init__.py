"""The top floor: roles, the launcher, the command line. Importing it loads none of them."""
