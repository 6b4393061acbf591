"""The payment provider. A real one is an HTTP client; `key` makes a repeated call charge once."""

charged: dict[str, int] = {}


def pay(key: str, cents: int) -> None:
    charged.setdefault(key, cents)
