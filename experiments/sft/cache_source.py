"""A token cache that exists already as the source of a data set: no raw rows, no tokenization."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from neve import ExecutorStep, InputError, adopt

from steps.adopt_cache import AdoptCacheConfig, adopt_cache

_OWN_FIELDS = ("name", "source")
"""Fields of a data set that a cache fixes by itself; the mixture's fields apply to it too."""

_MIXTURE_FIELDS = ("weight", "repeat", "max_conversations", "long_conversations")


@dataclass(frozen=True, kw_only=True)
class TokenCache:
    """A Levanter chat cache: adopted by path, checked once, and read where it lies.

    Its validation split, if it has one, is used as it is; the recipe's validation_fraction is not
    applied to it.
    """

    path: str
    """Folder with train/ and maybe validation/ (Levanter's cache_dir), or a flat cache."""

    accept: tuple[str, ...] = ()
    """Differences between what made the cache and the recipe, each as the check's error words it."""

    def tokenized_step(self, name: str, tokenizer: ExecutorStep, template: str) -> ExecutorStep:
        """Returns the step that stands for the tokenized data set.

        Args:
            name: Name of the data set.
            tokenizer: Step with the recipe's tokenizer.json.
            template: Jinja text of the recipe's chat template, which its export carries.

        Raises:
            InputError: Nothing is at the path.
        """
        config = AdoptCacheConfig(tokenizer=tokenizer, template=template, accept=self.accept)
        return adopt(f"tokenized/{name}", self.path, check=adopt_cache, config=config)


def refuse_unused_fields(dataset: Any) -> None:
    """Refuses a DatasetSpec that asks for what only the making of a cache could do.

    Raises:
        InputError: A field that a cache can't follow is set.
    """
    for field in dataclasses.fields(dataset):
        if field.name in (*_OWN_FIELDS, *_MIXTURE_FIELDS):
            continue
        if getattr(dataset, field.name) != field.default:
            raise InputError(
                f"dataset {dataset.name!r}: {field.name} must be left out where the source is a "
                f"token cache, got {getattr(dataset, field.name)!r}. It is fixed in the cache."
            )
