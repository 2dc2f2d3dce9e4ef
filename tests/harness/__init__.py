"""What tests/run is made of: how parts run (work), how their results are read (reports), which parts
there are (parts), in which order and beside which others (lanes), and how many tests must have
passed and which may be left out (expected), and what the end of a run says (summary)."""
