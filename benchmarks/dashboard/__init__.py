"""The size and speed of the dashboard, and what its viewers cost the server and the storage."""
