"""Whether answers are right: bias, calibration, evidence, modes."""
