"""What the tests of Paddock share: running the program, looking at the host, attack tables."""
