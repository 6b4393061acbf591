"""An app for commands that need one. Its storage is that of --url."""

from treadle import App

app = App("memory://")
