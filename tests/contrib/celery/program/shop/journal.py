"""The journal of the shop: one line for each run, in the file that SHOP_JOURNAL names."""

import os


def record(*words):
    with open(os.environ["SHOP_JOURNAL"], "a") as file:
        file.write(" ".join(str(word) for word in words) + "\n")


def already(*words):
    try:
        with open(os.environ["SHOP_JOURNAL"]) as file:
            return " ".join(str(word) for word in words) in file.read().splitlines()
    except FileNotFoundError:
        return False
