"""The web page of the service: what is remembered, seen and changed by a person. Asks the service's own routes."""
