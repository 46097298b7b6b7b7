"""How the service is spoken to: thin adapters between protocols and the desk."""
