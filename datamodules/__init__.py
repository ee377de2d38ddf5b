"""Lightning data modules: text to train on and prompts to answer."""

from .prompt_tasks import PromptTaskDataModule
from .text import TextDataModule

__all__ = ["PromptTaskDataModule", "TextDataModule"]
