"""What an answer must look like, and how a canvas is filled so that it does.

`patterns` says what a user writes, `automaton` makes a token automaton of it, `chain` sums over what the automaton
accepts within a window, and `held` keeps where the rows of a call stand.
"""
