"""What a study compares."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A recipe of a tower, and a variant of it.

    Args:
        tower: bi_encoder or cross_encoder.
        recipe: the name of its file, without suffix.
        variant: "" for a recipe that runs as it is.
        names_tower: whether the tower is part of the name, since another recipe of the study has the same file name.
    """

    tower: str
    recipe: str
    variant: str = ""
    names_tower: bool = False

    @property
    def parts(self) -> list[str]:
        """What tells this method from the others of its study."""
        return [self.tower] * self.names_tower + [self.recipe] + [self.variant] * bool(self.variant)

    @property
    def name(self) -> str:
        return " ".join(self.parts)

    @classmethod
    def from_name(cls, name: str, tower: str) -> "Method":
        """The method of a result from before 2026-11-22, which has nothing but the name.

        Args:
            tower: of its recipe.
        """
        first, *others = name.split()
        names_tower = first == tower and bool(others)
        recipe, *variant = others if names_tower else (first, *others)
        return cls(tower, recipe, " ".join(variant), names_tower)
