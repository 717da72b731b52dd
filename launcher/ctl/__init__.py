"""`elastic-ctl`: one module for each subcommand; `launcher.ctl.cli` has their table."""
