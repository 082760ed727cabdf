"""The tamper check: what everybody says in it, who collects it, and who is to blame if it fails."""
