"""An archive on disk: what it holds, how a round becomes visible, how it is read."""
