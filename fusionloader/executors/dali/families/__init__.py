"""Op families: operations that one prebuilt DALI pipeline does for many samples."""
