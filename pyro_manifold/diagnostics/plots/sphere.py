"""The unit circle and the unit sphere, that orthonormal columns are drawn on."""

from __future__ import annotations

from typing import Any

import torch


def circle(ax: Any) -> None:
    angle = torch.linspace(0, 2 * torch.pi, 200, dtype=torch.float64)
    ax.plot(angle.cos().numpy(), angle.sin().numpy(), color="0.8", lw=1, zorder=0)
    ax.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], xlabel="row 1", ylabel="row 2")
    ax.spines[["top", "right"]].set_visible(False)


def sphere(ax: Any) -> None:
    """Draw a faint sphere; its lines of latitude and longitude show on which side a point is."""
    around = torch.linspace(0, 2 * torch.pi, 25, dtype=torch.float64)
    down = torch.linspace(0, torch.pi, 13, dtype=torch.float64).unsqueeze(-1)
    x, y, z = down.sin() * around.cos(), down.sin() * around.sin(), down.cos().expand(-1, 25)
    ax.plot_wireframe(x.numpy(), y.numpy(), z.numpy(), color="0.88", lw=0.5, zorder=0)
    limits = (-1.15, 1.15)  # beyond the last ticks, so that those of two axes do not meet in a corner
    ax.set(xlim=limits, ylim=limits, zlim=limits, xlabel="row 1", ylabel="row 2", zlabel="row 3")
    ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[-1, 0, 1])
    ax.set_box_aspect((1, 1, 1), zoom=1.1)
    ax.grid(False)
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.pane.set_visible(False)
        axis.labelpad = -4
    ax.tick_params(pad=-1, labelsize="small")
