"""What Areca's speed is compared with: the same model and step, written as well as each library allows."""
