"""Example scripts, installed with the package: `elastic-launch -m elastic.examples.digits`. Copy them freely."""
