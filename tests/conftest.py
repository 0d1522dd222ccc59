"""Fixtures that every test may ask for by name."""

from tests.support.postgres import database, fresh_database, own_postgres, postgres

__all__ = ["database", "fresh_database", "own_postgres", "postgres"]
