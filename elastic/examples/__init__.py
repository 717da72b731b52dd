"""Scripts that run after installation: `elastic-launch -m elastic.examples.digits`. Copy them freely."""
