"""The subcommands of `elastic-ctl`; `launcher.ctl.cli` lists them."""
