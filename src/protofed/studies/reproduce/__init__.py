"""The tables and figures of the four papers, ours beside theirs."""
