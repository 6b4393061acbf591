"""The mail server. A real one is smtplib."""

sent: list[tuple[str, str]] = []


def send(to: str, text: str) -> None:
    sent.append((to, text))
