{{- define "elastic.selector" -}}
app.kubernetes.io/name: elastic-controller
app.kubernetes.io/part-of: elastic-runtime
{{- end }}

{{- define "elastic.labels" -}}
{{ include "elastic.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "elastic.account" -}}
{{ .Values.serviceAccount.name | default "elastic-controller" }}
{{- end }}

{{/* ClusterRoles belong to the whole cluster: two releases must not share their names. */}}
{{- define "elastic.role" -}}
{{- if or .Values.namespaced (eq .Release.Namespace "elastic-job") -}}
elastic-controller
{{- else -}}
elastic-controller-{{ .Release.Namespace }}
{{- end -}}
{{- end }}
