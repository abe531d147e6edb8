# SPDX-License-Identifier: Apache-2.0
"""The words of the kernel's command line that we write or advise, and their exclusions. Pure.

``prepare``, ``configure`` and ``doctor`` take each word from this module. A word is not added if
an option of the operator excludes it, or if a running feature would be off after the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_tools.site.kernel_options import RUNNING, KernelOption, KernelOptions

INTEL_IOMMU: Final = "intel_iommu=on"
PASSTHROUGH: Final = "iommu=pt"
ARM_PASSTHROUGH: Final = "iommu.passthrough=1"
FAST_LINKS: Final = "pcie_aspm.policy=performance"
#: They come in pairs: ``hugepagesz=1G hugepages=100``.
PAGE_SIZE: Final = "hugepagesz="
PAGE_COUNT: Final = "hugepages="
#: Lists of CPUs. The operator's own list stays: the kernel refuses two that differ
#: (kernel/sched/isolation.c, "nohz_full= must match isolcpus=").
ISOLATED: Final = "isolcpus="
TICKLESS: Final = "nohz_full="
CALLBACKS: Final = "rcu_nocbs="
INTERRUPTS: Final = "irqaffinity="
LISTS: Final = (ISOLATED, TICKLESS, CALLBACKS, INTERRUPTS)

#: Kind of IOMMU -> words that switch it on (Documentation/admin-guide/kernel-parameters.txt).
#: AMD's is on if the firmware has it; Arm's only word is for the host's own devices.
IOMMU_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "intel": (INTEL_IOMMU, PASSTHROUGH),
    "amd": (PASSTHROUGH,),
    "arm": (ARM_PASSTHROUGH,),
}


@attrs.frozen
class Exclusion:
    """A reason why ``prepare`` does not add a word to the kernel's command line."""

    #: The option, and the test of a value that excludes the word; with *last* only the last value
    #: of the option is tested.
    option: str
    excludes: Callable[[KernelOption], bool]
    why: str
    last: bool = False
    #: A feature of the running kernel that excludes the word, too.
    feature: str | None = None
    #: The word would switch a feature off; False if it would only have no effect.
    harms: bool = True


def _has_part(*parts: str) -> Callable[[KernelOption], bool]:
    return lambda option: bool({*option.value.split(",")} & {*parts})


def _is_false(option: KernelOption) -> bool:
    return not option.is_true


def _is_true(option: KernelOption) -> bool:
    return option.is_true


_TRANSLATES: Final = "it requests translation for the host's own devices"
_OFF: Final = (
    Exclusion("iommu", _has_part("off"), "it switches the IOMMU off"),
    Exclusion("intel_iommu", _has_part("off"), "it switches the IOMMU off"),
    Exclusion("amd_iommu", _has_part("off"), "it switches the IOMMU off"),
)
_PASSING: Final = (
    Exclusion("iommu", _has_part("nopt"), _TRANSLATES),
    Exclusion("iommu.passthrough", _is_false, _TRANSLATES),
    # drivers/iommu/amd/init.c: "configured in passthrough mode, SNP cannot be supported".
    Exclusion(
        "kvm_amd.sev_snp",
        _is_true,
        "the kernel has no SEV-SNP with passthrough",
        last=True,
        feature="SEV-SNP",
    ),
    # drivers/iommu/iommu.c, iommu_subsys_init: translation is the default with memory encryption.
    Exclusion(
        "mem_encrypt",
        _is_true,
        "devices reach encrypted memory by the IOMMU's translation",
        last=True,
    ),
    *_OFF,
)

#: Word -> its exclusions; a word that ends with = stands for each of its values.
EXCLUSIONS: Final[Mapping[str, tuple[Exclusion, ...]]] = {
    INTEL_IOMMU: _OFF,
    PASSTHROUGH: _PASSING,
    ARM_PASSTHROUGH: _PASSING,
    FAST_LINKS: (
        Exclusion(
            "pcie_aspm", _has_part("off"), "the kernel then leaves link states alone", harms=False
        ),
    ),
    # mm/hugetlb.c: "hugetlb_cma is enabled, skip boot time allocation" (of gigantic pages).
    f"{PAGE_SIZE}1G": (
        Exclusion(
            "hugetlb_cma",
            lambda option: option.value.strip("0") not in ("", "0"),
            "the kernel then reserves no pages of this size at boot",
            harms=False,
        ),
    ),
    PAGE_SIZE: (),
    PAGE_COUNT: (),
    **dict.fromkeys(LISTS, ()),
}


def find_exclusion(word: str, kernel: KernelOptions) -> str | None:
    """Return the reason not to add *word*, as a clause with its source; None if it may be added.

    :raises KeyError: the table does not have the word.
    """
    key = word if word in EXCLUSIONS else f"{word.partition('=')[0]}="
    for exclusion in EXCLUSIONS[key]:
        options = kernel.named(exclusion.option)
        found = [option for option in options if exclusion.excludes(option)]
        if exclusion.last:
            found = [option for option in options[-1:] if exclusion.excludes(option)]
        if found:
            return f"{found[0].text} ({found[0].place}): {exclusion.why}"
        for feature, seen in kernel.features:
            if feature == exclusion.feature:
                return f"{feature} is on ({seen}): {exclusion.why}"
    for option in kernel.named(key.rstrip("=")) if key in LISTS else ():
        # The running command line may have our own words of an earlier set.
        if option.place != RUNNING and option.text != word:
            return f"{option.text} ({option.place}): it is the operator's own list"
    if kernel.unread and any(exclusion.harms for exclusion in EXCLUSIONS[key]):
        return f"it is unknown whether a setting excludes it: {kernel.unread[0]}"
    return None


def choose_words(wanted: Sequence[str], kernel: KernelOptions) -> tuple[list[str], list[str]]:
    """Return the words of *wanted* that may be added, and a sentence about each of the others."""
    kept: list[str] = []
    notes: list[str] = []
    size_excluded = False
    for word in wanted:
        reason = find_exclusion(word, kernel)
        if word.startswith(PAGE_SIZE):
            size_excluded = reason is not None
        elif word.startswith(PAGE_COUNT) and size_excluded:
            continue  # the count of a size that is not added
        if reason is None:
            kept.append(word)
        else:
            notes.append(f"{word} is not added to the kernel's command line: {reason}.")
    return kept, notes


def advise_words(wanted: Iterable[str], kernel: KernelOptions) -> str:
    """Return the words of *wanted* that may be advised, joined by "and"; "" if there are none."""
    return " and ".join(word for word in wanted if find_exclusion(word, kernel) is None)


def leaves_dma_untranslated(options: Iterable[KernelOption]) -> bool:
    """Whether options leave the DMA of the host's own devices untranslated.

    A later option wins (``iommu=`` of x86 and ``iommu.passthrough`` set the same variable).
    """
    passthrough = False
    for option in options:
        if option.name == "iommu":
            for part in option.value.split(","):
                passthrough = part == "pt" or (passthrough and part != "nopt")
        elif option.name == "iommu.passthrough":
            passthrough = option.is_true
    return passthrough
