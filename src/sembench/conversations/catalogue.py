"""Stories by profile name."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from sembench import plugins
from sembench.conversations.agent import AgentStory
from sembench.conversations.chat import ChatStory
from sembench.conversations.library import Library
from sembench.conversations.story import Limits, Story
from sembench.errors import UsageError
from sembench.plugins import load_plugin

STORIES: dict[str, Callable[..., Story]] = {"agent": AgentStory, "chat": ChatStory}
"""Multi-turn profiles by name."""


def load_story(
    profile: str,
    *,
    seed: int,
    index: int,
    limits: Limits | None = None,
    library: Library | None = None,
) -> Story:
    """Story number `index` of a profile. Same seed and index, same story.

    Parameters
    ----------
    library
        What the story is about; default: passages of the synthetic profile.

    Raises
    ------
    UsageError
        If there is no such profile.
    """
    make = STORIES.get(profile) or load_plugin(plugins.STORIES, profile)
    if make is None:
        raise UsageError(f"--profile: {profile!r} is not one of {', '.join(STORIES)}")
    return cast(Story, make(seed=seed, index=index, limits=limits or Limits(), library=library))
