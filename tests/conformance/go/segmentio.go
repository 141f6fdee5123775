package main

func newSegmentio(bootstrap string) Driver { panic("later") }
