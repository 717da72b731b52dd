"""The subcommands of `elastic-ctl`, one file each; `launcher.ctl` has their table."""
