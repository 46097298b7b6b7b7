"""The page: requests and their stories for people, rendered here, without anything from elsewhere."""
