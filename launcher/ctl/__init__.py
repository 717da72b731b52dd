"""`elastic-ctl`: one module per subcommand; `launcher.ctl.cli` has the table of subcommands."""
