"""What ``iter()`` returns, and how its samples are made: in which process, and by what."""
