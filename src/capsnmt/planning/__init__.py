"""What a recipe costs before it runs: devices, hours, disk and memory, with the arithmetic shown."""
