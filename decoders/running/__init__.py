"""Several blocks of a row in flight: the later ones are denoised while the earlier ones are not finished."""
