"""A script that starts itself again under elastic-launch: its flags and the restart."""
