"""Losses per example, per sequence and per token, from loss functions and models of users."""
