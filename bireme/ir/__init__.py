"""What a program is: blocks of operators over named variables."""
