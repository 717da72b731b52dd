"""`elastic-ctl`: its subcommands; `launcher.ctl.cli` has the table of them."""
