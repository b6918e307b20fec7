"""All tables and figures that `protofed reproduce` can make, by name."""

from __future__ import annotations

from protofed.studies.reproduce.fednh import FEDNH_STUDIES
from protofed.studies.reproduce.fedproto import FEDPROTO_STUDIES
from protofed.studies.reproduce.mpfedcl import MPFEDCL_STUDIES
from protofed.studies.reproduce.mpfedcl_figures import MPFEDCL_FIGURES
from protofed.studies.reproduce.protomargin import PROTOMARGIN_STUDIES
from protofed.studies.reproduce.segmentation import SEGMENTATION_STUDIES
from protofed.studies.reproduce.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        *FEDPROTO_STUDIES,
        *FEDNH_STUDIES,
        *PROTOMARGIN_STUDIES,
        *SEGMENTATION_STUDIES,
        *MPFEDCL_STUDIES,
        *MPFEDCL_FIGURES,
    )
}
