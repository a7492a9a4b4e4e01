{{- define "semblend.name" -}}
{{- printf "%s" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "semblend.labels" -}}
app.kubernetes.io/name: semblend
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "semblend.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "semblend.secretName" -}}
{{- if .Values.secret.existingSecret -}}
{{ .Values.secret.existingSecret }}
{{- else -}}
{{ include "semblend.name" . }}-fleet
{{- end -}}
{{- end -}}

{{/* The settings every member of the fleet shares. */}}
{{- define "semblend.fleetEnv" -}}
- name: SEMBLEND_NATS_URL
  value: {{ .Values.nats.url | quote }}
- name: SEMBLEND_NATS_SUBJECT
  value: {{ .Values.nats.subject | quote }}
- name: SEMBLEND_NAMESPACE_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ include "semblend.secretName" . }}
      key: namespace-secret
{{- end -}}

{{- define "semblend.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "semblend.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
