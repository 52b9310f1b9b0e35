"""Accuracy of answers: bias, calibration, evidence, modes."""
