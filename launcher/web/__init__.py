"""The web page of a job: the data that it shows, its HTML, and the server that browsers connect to."""
