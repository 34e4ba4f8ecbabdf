"""Reading a metrics page."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families


class Page:
    """The samples of a /metrics page in text."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._samples = [sample for family in self.families.values() for sample in family.samples]

    def __call__(self, name: str, **labels: str) -> float:
        """The one sample with this name whose labels hold these."""
        (value,) = self._values(name, labels)
        return value

    def sum(self, name: str, **labels: str) -> float:
        """Of all such samples; 0 for none."""
        return sum(self._values(name, labels))

    @property
    def names(self) -> set[str]:
        """Of samples, as they stand in queries."""
        return {sample.name for sample in self._samples}

    def _values(self, name: str, labels: dict[str, str]) -> list[float]:
        return [s.value for s in self._samples if s.name == name and labels.items() <= s.labels.items()]
