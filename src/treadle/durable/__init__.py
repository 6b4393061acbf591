"""Durable steps: code that goes on after a crash where it stopped."""
