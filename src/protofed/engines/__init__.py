"""How the clients' work is done. All engines give what `loop` gives."""
