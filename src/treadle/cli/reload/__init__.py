"""`--reload`: starts a command's processes again when a source file has changed. For development."""
