"""Views: topics that show selected records of another topic."""
