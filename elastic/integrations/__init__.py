"""What connects this library with frameworks and experiment trackers; each module loads its packages when used."""
