"""What people who run Treadle do: look, cancel, retry, pause, limit. All of it is the contract's verbs from outside."""
